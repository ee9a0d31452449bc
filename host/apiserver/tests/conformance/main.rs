//! The server against the Kubernetes contract. Everything asserted here holds of a real kube-apiserver with its
//! controller manager, too, unless the test's name says that it is about this server.

mod clusters;
mod deletion;
mod harness;
mod kubectl;
mod lists;
mod objects;
mod runtime;
mod storage;
mod watches;
