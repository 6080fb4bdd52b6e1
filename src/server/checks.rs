//! The thread that has the upstreams' servers checked: one for the process, and only while there
//! is something to check.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::config::UpstreamSettings;
use crate::upstream::{self, Vitals};

/// After checks that ended by themselves, as they do in a panic.
const REST: Duration = Duration::from_secs(1);

/// Who has servers checked. The thread ends when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Checks(Mutex<Option<watch::Sender<Vec<UpstreamSettings>>>>);

impl Checks {
    /// From now on checks these upstreams, and nothing else.
    pub(super) fn follow(
        &self,
        settings: &[UpstreamSettings],
        vitals: &Arc<Vitals>,
    ) -> io::Result<()> {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*thread {
            Some(thread) => thread.send_modify(|known| settings.clone_into(known)),
            None if settings.iter().any(|one| one.health.is_some()) => {
                let (sender, follow) = watch::channel(settings.to_vec());
                spawn(follow, Arc::clone(vitals))?;
                *thread = Some(sender);
            }
            None => {}
        }
        Ok(())
    }
}

fn spawn(
    mut follow: watch::Receiver<Vec<UpstreamSettings>>,
    vitals: Arc<Vitals>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let checking = async move {
        loop {
            let settings = follow.borrow_and_update().clone();
            tokio::select! {
                () = upstream::run_health_checks(&settings, &vitals) => tokio::time::sleep(REST).await,
                changed = follow.changed() => if changed.is_err() { return },
            }
        }
    };
    std::thread::Builder::new()
        .name("checks".to_owned())
        .spawn(move || runtime.block_on(checking))?;
    Ok(())
}
