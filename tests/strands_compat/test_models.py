"""What the event loop requires of a provider."""

from __future__ import annotations

from pydantic import BaseModel

from support.provider.agents import agent_on, scripted_model


class Sum(BaseModel):
    """A sum."""

    value: int


async def test_canary_a_schema_reaches_the_engine() -> None:
    model, engine = scripted_model(["it is four", '{"value": 4}'])
    result = await agent_on(model).invoke_async("2+2?", structured_output_model=Sum)
    look = (
        "strands/event_loop/event_loop.py has changed: see how it finds out that a provider enforces "
        "structured_output_model itself (it was Model._supports_structured_output), and set that in "
        "_strands_compat/agents.py"
    )
    assert ["json_schema" in call.sampling for call in engine.calls] == [False, True], look
    assert result.structured_output == Sum(value=4), look
