"""What a launch has to do, and what that costs in seconds: tables and their model."""
