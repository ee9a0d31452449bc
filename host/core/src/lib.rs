//! What Hostler decides: pure functions from what was seen to what should happen. No clock, no client, no async runtime.

#![forbid(unsafe_code)]

pub mod boot;
pub mod grant;
pub mod loan;
pub mod retry;
pub mod scope;
pub mod seams;
pub mod view;
