"""Messages and tokens: Strands blocks, the chat template, the bridge, soundness."""
