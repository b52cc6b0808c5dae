"""Cost tables out of launch logs, by least squares."""
