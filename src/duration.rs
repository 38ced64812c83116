//! Durations as clients write them: one parser and one printer for the whole server.
