"""What a launch runs: layouts of uploads, packing, compiled steps, and what is read back."""
