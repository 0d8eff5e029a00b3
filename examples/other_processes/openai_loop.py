"""The OpenAI SDK in a loop, with one tool: `pip install openai`."""

import json
import os
import sys

from openai import OpenAI

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
CALCULATOR = {"name": "calculator", "description": "Compute one operation on two integers.", "parameters": PARAMETERS}


def calculate(expression):
    """Compute one operation on two integers, such as `615 * 17`."""
    try:
        left, operator, right = expression.split()
        return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))
    except (ValueError, KeyError) as error:
        return f"error: {error!r}"


client = OpenAI()  # address and key are in its environment
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    tools = [{"type": "function", "function": CALCULATOR}]
    answer = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=tools)
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = calculate(json.loads(call.function.arguments).get("expression", ""))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(message.content)
