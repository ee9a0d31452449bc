//! Candidates on the API server in memory: one leads, and the next one only when the first can write no more.

use std::sync::atomic::{AtomicBool, Ordering};

use hostler_apiserver::{Identity, Options, Server, Store};
use http::Request;
use kube::api::{ListParams, Patch, PatchParams};
use kube::client::Body;
use tower::BoxError;

use super::*;

const NAMESPACE: &str = "default";
const LEASE: &str = "hostler";
/// Long enough for a loaded machine to renew in time.
const SECONDS: u64 = 3;

struct Party {
    server: Server,
    _stop: tokio_util::sync::DropGuard,
}

/// One candidate and what it holds.
struct Candidate {
    fence: Fence,
    metrics: Arc<Metrics>,
    /// Whether its requests arrive.
    reachable: Arc<AtomicBool>,
    election: Election,
}

impl Party {
    fn new() -> Self {
        let mut options = Options::new(Store::Memory);
        options.cluster = "platform".to_owned();
        let stop = CancellationToken::new();
        let server = Server::open(options).unwrap();
        server.start(stop.clone());
        Self {
            server,
            _stop: stop.drop_guard(),
        }
    }

    fn client(&self) -> Client {
        self.server.client("platform", Identity::administrator())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    fn candidate(&self, name: &str) -> Candidate {
        let (fence, metrics) = (Fence::closed(), Metrics::new());
        let reachable = Arc::new(AtomicBool::new(true));
        let client = {
            let (inner, reachable) = (self.client(), reachable.clone());
            let through = tower::service_fn(move |request: Request<Body>| {
                let (inner, reachable) = (inner.clone(), reachable.clone());
                async move {
                    if !reachable.load(Ordering::SeqCst) {
                        return Err::<_, BoxError>("nobody is there".into());
                    }
                    Ok(inner.send(request).await?)
                }
            });
            Client::new(through, NAMESPACE)
        };
        let terms = Terms::new(Duration::from_secs(SECONDS), Duration::from_millis(SECONDS * 100)).unwrap();
        let election = Election::new(
            client,
            NAMESPACE,
            LEASE,
            name.to_owned(),
            terms,
            fence.clone(),
            metrics.clone(),
        );
        Candidate {
            fence,
            metrics,
            reachable,
            election,
        }
    }

    async fn holder(&self) -> Option<String> {
        record_of(&self.leases().get(LEASE).await.unwrap())
            .unwrap()
            .holder
    }
}

impl Candidate {
    async fn win(&self) -> Leadership {
        let stop = CancellationToken::new();
        tokio::time::timeout(Duration::from_secs(60), self.election.clone().win(&stop))
            .await
            .expect("it leads in the end")
            .unwrap()
    }

    fn leads(&self) -> bool {
        self.metrics.text().1.contains("hostler_leader 1")
    }
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_gives_the_next_one_its_place_at_once() {
    let party = Party::new();
    let (first, second) = (party.candidate("first"), party.candidate("second"));
    let leads = first.win().await;
    assert!(first.fence.is_open() && first.leads());
    assert_eq!(party.holder().await.as_deref(), Some("first"));

    let stop = CancellationToken::new();
    let waits = tokio::spawn({
        let (election, stop) = (second.election.clone(), stop.clone());
        async move { election.win(&stop).await }
    });
    // Longer than a lease: renewals keep it.
    tokio::time::sleep(Duration::from_secs(SECONDS + 1)).await;
    assert!(!waits.is_finished() && !second.fence.is_open());
    assert!(first.fence.is_open());

    leads.resign().await;
    assert!(!first.fence.is_open() && !first.leads());
    let leads = waits.await.unwrap().unwrap();
    assert!(second.fence.is_open());
    let record = record_of(&party.leases().get(LEASE).await.unwrap()).unwrap();
    assert_eq!(
        (record.holder.as_deref(), record.transitions),
        (Some("second"), 1)
    );
    leads.resign().await;
    assert_eq!(party.holder().await, None, "nobody is left");
    assert_eq!(
        party
            .leases()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_may_stop_waiting() {
    let party = Party::new();
    let _leads = party.candidate("first").win().await;
    let stop = CancellationToken::new();
    stop.cancel();
    assert!(party.candidate("second").election.win(&stop).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_cut_off_stops_writing_before_the_next_one_leads_and_never_leads_again() {
    let party = Party::new();
    let (first, second) = (party.candidate("first"), party.candidate("second"));
    let leads = first.win().await;
    first.reachable.store(false, Ordering::SeqCst);
    let next = second.win().await;
    assert!(second.fence.is_open());
    assert!(!first.fence.is_open(), "two may write at a time");
    assert!(!leads.lost().is_cancelled(), "it cannot know yet");

    first.reachable.store(true, Ordering::SeqCst);
    eventually("it learns that somebody else leads", || {
        leads.lost().is_cancelled()
    })
    .await;
    assert!(!first.fence.is_open() && !first.leads());
    next.resign().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!first.fence.is_open(), "it does not come back by itself");
    leads.resign().await;
    assert_eq!(party.holder().await, None, "it leaves the lease alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_was_away_costs_nobody_the_lease() {
    let party = Party::new();
    let only = party.candidate("only");
    let leads = only.win().await;
    only.reachable.store(false, Ordering::SeqCst);
    eventually("writes are held back", || !only.fence.is_open()).await;
    only.reachable.store(true, Ordering::SeqCst);
    eventually("writes go on", || only.fence.is_open()).await;
    assert!(!leads.lost().is_cancelled());
    let record = record_of(&party.leases().get(LEASE).await.unwrap()).unwrap();
    assert_eq!((record.holder.as_deref(), record.transitions), (Some("only"), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_on_the_lease_deposes_nobody_and_clocks_that_differ_change_nothing() {
    let party = Party::new();
    let (first, second) = (party.candidate("first"), party.candidate("second"));
    let leads = first.win().await;
    for change in [
        json!({"metadata": {"labels": {"team": "site"}}}),
        // As if its holder's clock were years ahead, or behind.
        json!({"spec": {"renewTime": "2099-01-01T00:00:00.000000Z", "acquireTime": "1999-01-01T00:00:00.000000Z"}}),
        json!({"spec": {"renewTime": "1999-01-01T00:00:00.000000Z"}}),
    ] {
        let params = PatchParams::default();
        let patched = party
            .leases()
            .patch(LEASE, &params, &Patch::Merge(&change))
            .await
            .unwrap();
        let stop = CancellationToken::new();
        let early = tokio::time::timeout(Duration::from_millis(500), second.election.clone().win(&stop));
        assert!(early.await.is_err(), "taken while it is renewed");
        eventually("it is renewed", || first.fence.is_open()).await;
        let now = party.leases().get(LEASE).await.unwrap();
        assert_ne!(now.resource_version(), patched.resource_version());
        assert_eq!(party.holder().await.as_deref(), Some("first"));
    }
    assert!(!leads.lost().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_deleted_by_hand_makes_no_two_leaders() {
    let party = Party::new();
    let (first, second) = (party.candidate("first"), party.candidate("second"));
    let leads = first.win().await;
    let stop = CancellationToken::new();
    let waits = tokio::spawn({
        let (election, stop) = (second.election.clone(), stop.clone());
        async move { election.win(&stop).await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    party
        .leases()
        .delete(LEASE, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    for _ in 0..20 {
        assert!(
            !(first.fence.is_open() && second.fence.is_open()),
            "two may write at a time"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eventually("one of them leads", || {
        first.fence.is_open() || second.fence.is_open()
    })
    .await;
    stop.cancel();
    drop(waits.await.unwrap());
    drop(leads);
}
