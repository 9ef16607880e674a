//! A store in memory, for tests and simulation.
