"""How a round travels: in one process, or over torch.distributed. `outer` knows nothing of this."""
