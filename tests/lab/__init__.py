"""A laboratory of network namespaces: a simulated internet, a sandbox's place in it, probes.

Nothing here reaches the world: the namespaces have no route out, and where the engine's bridge
is attached to the laboratory a guard on the host drops whatever leads elsewhere.
"""
