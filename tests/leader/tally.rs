//! The writes of one process, whichever way they take, and the one at which it is stopped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::watch;

use super::process::signal;
use crate::harness::{Strikes, eventually};

/// What happens to the write at which the process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Struck {
    /// It lands; the answer waits for the process to wake up.
    Landed,
    /// It is on its way until it is released.
    Held,
}

/// At which write, told by number (from one), method and path.
pub(super) type Strike = Box<dyn Fn(usize, &str) -> Option<Struck> + Send + Sync>;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// It changed nothing.
    Refused,
    /// What it changed was as the writer had seen it: it named that version, or that object.
    Checked,
    /// It changed what stood there, whatever that was, or made something.
    Blind,
}

impl Answered {
    fn of(body: &[u8], status: StatusCode) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let tested = |step: &Value| step["op"] == "test" && step["path"] == "/metadata/resourceVersion";
        let names_what_it_saw = body.pointer("/metadata/resourceVersion").is_some()
            || body.pointer("/preconditions").is_some()
            || body.as_array().is_some_and(|steps| steps.iter().any(tested));
        if !status.is_success() {
            Self::Refused
        } else if names_what_it_saw {
            Self::Checked
        } else {
            Self::Blind
        }
    }
}

pub(super) struct Tally {
    strike: Mutex<Option<Strike>>,
    process: AtomicU32,
    log: Mutex<Vec<String>>,
    /// Of each write that was answered, by its place in the log.
    answers: Mutex<BTreeMap<usize, Answered>>,
    /// The write at which it was stopped.
    struck: watch::Sender<Option<String>>,
    /// Whether the signal that stops it was sent.
    stopped: watch::Sender<bool>,
    released: watch::Sender<bool>,
    /// HTTP status of the write that was held.
    late: watch::Sender<u16>,
}

impl Tally {
    pub(super) fn new(strike: impl Fn(usize, &str) -> Option<Struck> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            strike: Mutex::new(Some(Box::new(strike))),
            process: AtomicU32::new(0),
            log: Mutex::default(),
            answers: Mutex::default(),
            struck: watch::Sender::new(None),
            stopped: watch::Sender::new(false),
            released: watch::Sender::new(false),
            late: watch::Sender::new(0),
        })
    }

    /// Of a process that is never stopped.
    pub(super) fn idle() -> Arc<Self> {
        Self::new(|_, _| None)
    }

    /// Whom to stop.
    pub(super) fn of(&self, process: u32) {
        self.process.store(process, Ordering::SeqCst);
    }

    /// From now on nobody is stopped; says whether somebody is, or is about to be.
    pub(super) fn spares(&self) -> bool {
        self.strike.lock().unwrap().take();
        self.has_struck()
    }

    /// Method and path of the write at which it was stopped.
    pub(super) fn struck_at(&self) -> Option<String> {
        self.struck.borrow().clone()
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Returns once the process was stopped.
    pub(super) async fn stopped(&self) {
        eventually("the leader is stopped", || async {
            if self.is_stopped() {
                Ok(())
            } else {
                Err(self.log().join("\n"))
            }
        })
        .await;
    }

    /// Lets the held write arrive; says how the API answered.
    pub(super) async fn release(&self) -> u16 {
        self.released.send_replace(true);
        let mut late = self.late.subscribe();
        *late.wait_for(|status| *status > 0).await.unwrap()
    }

    /// How many writes arrived so far.
    pub(super) fn count(&self) -> usize {
        self.log.lock().unwrap().len()
    }

    /// The writes after so many, with what became of each that was answered.
    pub(super) fn since(&self, count: usize) -> Vec<(String, Option<Answered>)> {
        let answers = self.answers.lock().unwrap();
        let log = self.log().into_iter().enumerate().skip(count);
        log.map(|(place, line)| (line, answers.get(&place).copied()))
            .collect()
    }

    /// Notes a write; returns its place in the log.
    fn counts(&self, line: &str) -> usize {
        let mut log = self.log.lock().unwrap();
        log.push(line.to_owned());
        log.len() - 1
    }

    fn strikes_at(&self, place: usize, line: &str) -> Option<Struck> {
        let mut strike = self.strike.lock().unwrap();
        let struck = strike.as_ref()?(place + 1, line)?;
        // Once.
        *strike = None;
        self.struck.send_replace(Some(line.to_owned()));
        Some(struck)
    }

    fn stop(&self) {
        signal(self.process.load(Ordering::SeqCst), "STOP");
        self.stopped.send_replace(true);
    }
}

impl Strikes for Tally {
    fn has_struck(&self) -> bool {
        self.struck_at().is_some()
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

/// Whether a write, told by method and path, is part of the work: neither the lease is, nor what is only told.
pub(super) fn is_work(line: &str) -> bool {
    !line.contains("/leases") && !line.contains("/events")
}

/// Brings a request of the process to the API; a write is counted, and may be the one at which the process is stopped.
pub(super) async fn pass(tally: Arc<Tally>, client: Client, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        // It ended in the middle of it.
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    head.uri = head.uri.path_and_query().unwrap().as_str().parse().unwrap();
    let request = http::Request::from_parts(head, Body::from(body.clone()));
    let line = format!("{} {path}", request.method());
    let is_write = !matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_write || !is_work(&line) {
        return forward(&client, request).await;
    }
    let place = tally.counts(&line);
    match tally.strikes_at(place, &line) {
        // Of its own, to its end: the process may give the connection up.
        None => {
            let forwarded = tokio::spawn(async move {
                let answer = forward(&client, request).await;
                let answered = Answered::of(&body, answer.status());
                tally.answers.lock().unwrap().insert(place, answered);
                answer
            });
            forwarded.await.unwrap()
        }
        Some(Struck::Landed) => {
            let answer = forward(&client, request).await;
            tally.stop();
            answer
        }
        Some(Struck::Held) => {
            tally.stop();
            let held = tokio::spawn(async move {
                let mut released = tally.released.subscribe();
                released.wait_for(|released| *released).await.unwrap();
                let answer = forward(&client, request).await;
                tally.late.send_replace(answer.status().as_u16());
                answer
            });
            held.await.unwrap()
        }
    }
}

async fn forward(client: &Client, request: http::Request<Body>) -> Response {
    match client.send(request).await {
        Ok(answer) => answer.map(axum::body::Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
