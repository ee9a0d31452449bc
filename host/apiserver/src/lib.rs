//! A small Kubernetes API over one file.
//!
//! [`Server::open`] opens a store, [`Server::client`] gives a client within the process, [`Server::serve`] serves a
//! socket, and [`Server::start`] starts what a cluster's controllers do: garbage collection, namespaces, definitions,
//! certificate requests. One server holds several logical clusters, which share nothing but the file.
//!
//! In reading order: `routes` (what a path means), `operation` (what is done), `store` (where it is kept), `watch` (who
//! is told), `registry` (which kinds there are), and what the operations lean on: `crd`, `patch`, `apply`, `table`.

mod admission;
mod agenda;
mod answer;
mod apply;
mod authenticate;
mod authorize;
mod background;
mod builtin;
mod cel;
mod certificates;
mod clock;
mod crd;
mod definitions;
mod discovery;
mod expiry;
mod fault;
mod fields;
mod furniture;
mod gc;
mod kubeconfig;
mod kubelets;
mod managed_fields;
mod metadata;
mod namespaces;
mod node_lifecycle;
mod openapi;
mod operation;
mod options;
mod patch;
mod patterns;
mod pod_lifecycle;
mod protobuf;
mod query;
mod registry;
mod resource;
mod routes;
mod schema;
mod selector;
mod server;
mod service;
mod socket;
mod status;
mod store;
mod table;
mod tls;
mod watch;

pub use authenticate::{ADMINISTRATORS, CONTROLLERS, Identity, Role};
pub use clock::{Clock, machine_clock};
pub use kubeconfig::{Proof, kubeconfig};
pub use kubelets::KubeletRoute;
pub use options::{OpenError, Options, Store};
pub use server::{Server, ServerError};
pub use service::Local;
pub use tls::{Authority, Issued, TlsError};
