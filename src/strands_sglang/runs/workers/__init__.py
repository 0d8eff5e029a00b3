"""Where episodes run: in this process (`local`) or in Ray processes (`ray_pool`)."""
