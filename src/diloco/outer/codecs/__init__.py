"""How an outer gradient is written on the wire, one file a family; `diloco.outer.codec` is the way in."""
