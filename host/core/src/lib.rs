//! What Hostler decides: pure functions from what was seen to what should happen. No clock, no client, no async runtime.

#![forbid(unsafe_code)]

pub mod admission;
pub mod boot;
pub mod config;
pub mod digest;
pub mod grant;
pub mod hidden;
pub mod join;
pub mod kubeconfig;
pub mod lease;
pub mod lifecycle;
pub mod loan;
pub mod order;
pub mod pool;
pub mod profile;
pub mod properties;
pub mod protected;
pub mod retry;
pub mod schedule;
pub mod scope;
pub mod seams;
pub mod selector;
pub mod values;
pub mod verdict;
pub mod view;

mod yaml;
