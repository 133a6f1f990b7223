"""One model on several devices: a process for each rank, and sums over them between segments."""
