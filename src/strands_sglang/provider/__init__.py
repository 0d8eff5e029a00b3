"""What `SGLangModel` is made of: its settings, its episodes, how a turn is planned, what the framework sees of it."""
