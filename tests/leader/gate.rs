//! The way of a process to an API, on which each of its writes is counted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use kube::Client;
use tokio::net::TcpListener;

use super::tally::{self, Tally};
use crate::harness::{PLATFORM, World};

/// Whose writes are counted here now.
#[derive(Clone)]
pub(super) struct Counted(Arc<Mutex<Arc<Tally>>>);

impl Counted {
    pub(super) fn by(tally: Arc<Tally>) -> Self {
        Self(Arc::new(Mutex::new(tally)))
    }

    pub(super) fn now(&self) -> Arc<Tally> {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn change(&self, tally: Arc<Tally>) {
        *self.0.lock().unwrap() = tally;
    }

    /// What passes requests to an API.
    pub(super) fn router(&self, client: Client) -> Router {
        let counted = self.clone();
        Router::new().fallback(move |request: Request| tally::pass(counted.now(), client.clone(), request))
    }
}

/// The way of one process to the platform's API.
pub(super) struct Gate {
    pub(super) address: SocketAddr,
    pub(super) counted: Counted,
    client: Client,
    /// Not answered before it is opened.
    listener: Mutex<Option<std::net::TcpListener>>,
}

impl Gate {
    pub(super) async fn new(world: &World, tally: Arc<Tally>) -> Self {
        let gate = Self::closed(world, tally).await;
        gate.open();
        gate
    }

    /// One behind which nobody answers yet.
    pub(super) async fn closed(world: &World, tally: Arc<Tally>) -> Self {
        // Whoever connects before it is opened gets no answer.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            counted: Counted::by(tally),
            client: world.stack.as_host(PLATFORM).unwrap(),
            listener: Mutex::new(Some(listener.into_std().unwrap())),
        }
    }

    /// Begins to answer.
    pub(super) fn open(&self) {
        let listener = self.listener.lock().unwrap().take().expect("opened once");
        let listener = TcpListener::from_std(listener).unwrap();
        let router = self.counted.router(self.client.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
    }
}
