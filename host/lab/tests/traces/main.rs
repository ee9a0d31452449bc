//! What was recorded from the real Metal3 is done again to the simulated one, and must look the same.

mod pure;
mod recording;
