"""The HTTP API: what requests and answers hold, and the routes that translate them."""
