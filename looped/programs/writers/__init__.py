"""Small programs that write rows of the request table, each with an upload of its own.

    admit, grow, edit    a new request; blocks that it has claimed since; its marks and logit bias
    registry             all of them
    due                  what has to be written before a launch

They run before the launch that first needs what they write. What the device advances they never
touch after admission.
"""
