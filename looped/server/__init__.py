"""The OpenAI-compatible server: HTTP in, requests of one engine, HTTP out.

    api/                          what requests and answers hold, and the routes
    config                        options of `looped serve`
    engine_thread                 the only place that touches the engine
    service, generation           the event loop's side: who waits for what, limits, draining
    text_work                     the threads that tokenise
    metrics, recent_launches      Prometheus; the status page
    errors, middleware, streams   the protocol's forms: errors, keys, limits, events
    app, listening, run           all of it together; its sockets; a process that stops as it should

Tokenising, detokenising and HTTP stay on the event loop and its helper threads: the engine's
thread never waits for any of them. Nothing is imported here, so that `looped --help` stays light.
"""
