"""From Strands messages to tokens and back: messages, chat template, tokenization, bridge, soundness."""
