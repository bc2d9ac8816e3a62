"""Media: what clients send as files becomes arrays, and arrays become what clients can play.

It knows no HTTP and no model. Its libraries are loaded by the modules that need them, never by this package.
"""
