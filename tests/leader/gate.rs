//! The way of one process to the platform's API: sees each of its writes, and stops the process at one of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::process::signal;
use crate::harness::{PLATFORM, World, eventually};

/// What happens to the write at which the process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Struck {
    /// It lands; the answer waits for the process to wake up.
    Landed,
    /// It is on its way until it is released.
    Held,
}

/// At which write, told by number, method and path.
pub(super) type Strike = Box<dyn Fn(usize, &str) -> Option<Struck> + Send + Sync>;

pub(super) struct Gate {
    pub(super) address: SocketAddr,
    parts: Arc<Parts>,
    /// Not answered before it is opened.
    listener: Mutex<Option<std::net::TcpListener>>,
}

struct Parts {
    client: Client,
    strike: Strike,
    process: AtomicU32,
    log: Mutex<Vec<String>>,
    struck: watch::Sender<bool>,
    released: watch::Sender<bool>,
    /// HTTP status of the write that was held.
    late: watch::Sender<u16>,
}

impl Gate {
    pub(super) async fn new(world: &World, strike: Strike) -> Self {
        let gate = Self::made(world, strike).await;
        gate.open().await;
        gate
    }

    /// One behind which nobody answers yet.
    pub(super) async fn closed(world: &World) -> Self {
        Self::made(world, Box::new(|_, _| None)).await
    }

    async fn made(world: &World, strike: Strike) -> Self {
        // Whoever connects before it is opened gets no answer.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Mutex::new(Some(listener.into_std().unwrap()));
        let parts = Parts {
            client: world.stack.as_host(PLATFORM).unwrap(),
            strike,
            process: AtomicU32::new(0),
            log: Mutex::default(),
            struck: watch::Sender::new(false),
            released: watch::Sender::new(false),
            late: watch::Sender::new(0),
        };
        Self {
            address,
            parts: Arc::new(parts),
            listener,
        }
    }

    /// Begins to answer.
    pub(super) async fn open(&self) {
        let listener = self.listener.lock().unwrap().take().expect("opened once");
        let listener = TcpListener::from_std(listener).unwrap();
        let parts = self.parts.clone();
        let router = Router::new().fallback(move |request: Request| pass(parts.clone(), request));
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    /// Whom to stop.
    pub(super) fn of(&self, process: u32) {
        self.parts.process.store(process, Ordering::SeqCst);
    }

    /// Returns once the process was stopped.
    pub(super) async fn struck(&self) {
        eventually("the leader is stopped", || async {
            if *self.parts.struck.borrow() {
                Ok(())
            } else {
                Err(self.log().join("\n"))
            }
        })
        .await;
    }

    /// Lets the held write arrive; says how the API answered.
    pub(super) async fn release(&self) -> u16 {
        self.parts.released.send_replace(true);
        let mut late = self.parts.late.subscribe();
        *late.wait_for(|status| *status > 0).await.unwrap()
    }

    /// Writes that arrived here so far.
    pub(super) fn writes(&self) -> usize {
        self.parts.log.lock().unwrap().len()
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.parts.log.lock().unwrap().clone()
    }
}

async fn pass(parts: Arc<Parts>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let body = body.collect().await.unwrap().to_bytes();
    let mut head = head;
    head.uri = head.uri.path_and_query().unwrap().as_str().parse().unwrap();
    let request = http::Request::from_parts(head, Body::from(body));
    let is_write = !matches!(*request.method(), Method::GET | Method::HEAD);
    // Neither the lease nor what is only told is part of the work.
    if !is_write || path.contains("/leases") || path.ends_with("/events") || path.contains("/events/") {
        return forward(&parts, request).await;
    }
    let line = format!("{} {path}", request.method());
    let number = {
        let mut log = parts.log.lock().unwrap();
        log.push(line.clone());
        log.len()
    };
    let strike = (parts.strike)(number, &line).filter(|_| !*parts.struck.borrow());
    let stop = || {
        signal(parts.process.load(Ordering::SeqCst), "STOP");
        parts.struck.send_replace(true);
    };
    match strike {
        None => forward(&parts, request).await,
        Some(Struck::Landed) => {
            let answer = forward(&parts, request).await;
            stop();
            answer
        }
        Some(Struck::Held) => {
            stop();
            // Of its own: the process may give the connection up as soon as it wakes.
            let held = tokio::spawn(async move {
                let mut released = parts.released.subscribe();
                released.wait_for(|released| *released).await.unwrap();
                let answer = forward(&parts, request).await;
                parts.late.send_replace(answer.status().as_u16());
                answer
            });
            held.await.unwrap()
        }
    }
}

async fn forward(parts: &Parts, request: http::Request<Body>) -> Response {
    match parts.client.send(request).await {
        Ok(answer) => answer.map(axum::body::Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
