// "shutting_down"
