"""Exit codes with which `agent.client` tells of the way to a node instead of the worker there."""

EXIT_NO_CONNECTION = 255
"""There is no way to the node, or it broke; as ssh has it."""

EXIT_NO_PLACE = 69
"""Others have all slots of the node. EX_UNAVAILABLE of sysexits.h."""
