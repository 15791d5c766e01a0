//! Ctrl-C: the first asks for an orderly end, the second leaves at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What a shell shows for a command that Ctrl-C ended: 128 and the signal's
/// number.
pub const EXIT_CODE: u8 = 130;

/// Hears Ctrl-C from its creation to the end of the process.
#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Starts to listen. Must run in a tokio runtime.
    ///
    /// At the second Ctrl-C the process ends without running destructors; what
    /// it started must end by itself then, as a demo's Envoy does.
    pub fn listen() -> io::Result<Self> {
        let mut signals = signal(SignalKind::interrupt())?;
        let (asked, heard) = watch::channel(false);
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                // Nobody may be waiting any more: then it is ending anyway.
                let _ = asked.send(true);
                if signals.recv().await.is_some() {
                    std::process::exit(EXIT_CODE.into());
                }
            }
        });
        Ok(Self(heard))
    }

    /// Returns when Ctrl-C has been pressed, now or before.
    pub async fn wait(&self) {
        let mut heard = self.0.clone();
        if heard.wait_for(|asked| *asked).await.is_err() {
            // No more signals come: wait for ever.
            std::future::pending::<()>().await;
        }
    }

    /// Ctrl-C has been pressed.
    pub fn asked(&self) -> bool {
        *self.0.borrow()
    }
}
