"""What a run will take: time, bandwidth, idle hardware, failures, money. numpy and scipy alone."""
