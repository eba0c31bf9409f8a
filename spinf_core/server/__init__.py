"""The HTTP server: front ends behind core's authentication, limits and request ids.

Imports the engine; needs the `server` extra.
"""
