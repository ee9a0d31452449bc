//! The server against the Kubernetes contract. Everything asserted here holds of a real kube-apiserver with its
//! controller manager, too, unless the test's name says that it is about this server.

mod harness;
mod objects;
