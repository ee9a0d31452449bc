//! A live look at many objects, shared by those who ask for it at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::Result;

/// One look after the other, numbered in the order in which they begin.
///
/// # Guarantees
/// Whoever asks sees what a look found that began after the question. However many ask, there is one look at a time: of those who
/// wait, the first one looks for all.
pub(crate) struct Look<T> {
    begun: AtomicU64,
    last: Mutex<(u64, Arc<T>)>,
}

impl<T: Default> Default for Look<T> {
    fn default() -> Self {
        Self {
            begun: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }
}

impl<T> Look<T> {
    /// What is there now; `look` is awaited only if nobody else's look will do.
    pub(crate) async fn now(&self, look: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        let asked = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if last.0 > asked {
            return Ok(last.1.clone());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let found = Arc::new(look.await?);
        *last = (number, found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::error::Error;

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_share_the_next_look_and_none_sees_one_that_began_before_it_asked() {
        let look: Look<usize> = Look::default();
        let looks = AtomicUsize::new(0);
        let ask = |after: u64| {
            let (look, looks) = (&look, &looks);
            async move {
                tokio::time::sleep(Duration::from_secs(after)).await;
                let number = look.now(async {
                    let number = looks.fetch_add(1, Ordering::SeqCst) + 1;
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    Ok(number)
                });
                *number.await.unwrap()
            }
        };
        // The first looks from 0 to 10; all that ask meanwhile share the one from 10 to 20, and who asks in that the one after it.
        let seen = futures::future::join_all([0, 1, 5, 9, 15].map(ask)).await;
        assert_eq!(seen, [1, 2, 2, 2, 3]);
        // Nobody is left who asked before: what was seen then is not taken for what is there now.
        assert_eq!(ask(0).await, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_fails_is_only_the_end_of_the_one_who_looked() {
        let look: Look<usize> = Look::default();
        let failing = look.now(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err(Error::Busy("not now".to_owned()))
        });
        let (failed, seen) = tokio::join!(failing, look.now(async { Ok(7) }));
        assert!(failed.is_err());
        assert_eq!(*seen.unwrap(), 7);
    }
}
