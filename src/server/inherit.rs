//! Sockets that this process was started with: by a service manager (`LISTEN_FDS`), or by an older
//! process of ours that makes room (`handover.rs`).

use std::io;
use std::time::Duration;

use listenfd::ListenFd;
use socket2::SockRef;

use super::handover::{Channel, VARIABLE, VERSION};
use super::listener::{Listener, OpenedSocket};
use crate::config;

/// How long the other process may take for its next word.
const PATIENCE: Duration = Duration::from_secs(10);

/// All that was inherited.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Sockets that listen already.
    pub sockets: Vec<OpenedSocket>,
    /// The process whose place we take, if there is one.
    pub predecessor: Option<Predecessor>,
}

/// The process whose place we take. It serves until [`Predecessor::take_over`].
#[derive(Debug)]
pub struct Predecessor {
    channel: Channel,
    pid: u32,
}

impl Inherited {
    /// Takes what there is. To be called once, before there are other threads.
    ///
    /// # Errors
    /// Something was handed over that cannot be used.
    pub fn take() -> io::Result<Inherited> {
        match config::environment(VARIABLE) {
            Some(version) if version == VERSION => from_predecessor(Channel::from_stdin()?),
            Some(version) => Err(io::Error::other(format!(
                "{VARIABLE} is {version}, and this version understands {VERSION} only"
            ))),
            None => from_service_manager(),
        }
    }
}

impl Predecessor {
    /// The other process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Says that we serve, and returns once the place is ours, or the other is gone. The other
    /// stops accepting when this is dropped.
    ///
    /// # Errors
    /// It has changed its mind: it goes on, and we should not.
    pub fn take_over(&self) -> io::Result<()> {
        self.channel.wait_at_most(PATIENCE)?;
        // It may have died since; then nobody needs to be told.
        let told = self.channel.send("ready", &[]);
        let answer = told.and_then(|()| self.channel.receive());
        match answer {
            Ok(Some(message)) if message.words == "go" => Ok(()),
            Ok(Some(message)) => Err(io::Error::other(format!(
                "process {} says `{}`",
                self.pid, message.words
            ))),
            Ok(None) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn from_predecessor(channel: Channel) -> io::Result<Inherited> {
    channel.wait_at_most(PATIENCE)?;
    let mut sockets = Vec::new();
    let mut pid = 0;
    loop {
        let message = channel.receive()?;
        let message = message.ok_or(io::ErrorKind::UnexpectedEof)?;
        let words: Vec<&str> = message.words.splitn(3, ' ').collect();
        match words[..] {
            ["process", text] => pid = text.parse().unwrap_or_default(),
            ["sockets", whose @ ("own" | "lent"), name] => {
                for descriptor in message.descriptors {
                    sockets.push(OpenedSocket {
                        name: name.to_owned(),
                        lent: whose == "lent",
                        socket: Listener::from_fd(descriptor)?,
                    });
                }
            }
            ["end"] => break,
            _ => {
                let text = format!("process {pid} says `{}`", message.words);
                return Err(io::Error::other(text));
            }
        }
    }
    Ok(Inherited {
        sockets,
        predecessor: Some(Predecessor { channel, pid }),
    })
}

/// The protocol of `sd_listen_fds(3)`.
fn from_service_manager() -> io::Result<Inherited> {
    let names = config::environment("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..passed.len() {
        let name = match names.next() {
            None | Some("" | "unknown") => format!("descriptor {}", index + 3),
            Some(name) => name.to_owned(),
        };
        let unusable = |error: io::Error| {
            let text = format!("the service manager passed {name}, which is not usable: {error}");
            io::Error::new(error.kind(), text)
        };
        let tcp = passed.take_tcp_listener(index).ok().flatten();
        let socket = match tcp {
            Some(socket) => Listener::Tcp(socket),
            None => match passed.take_unix_listener(index).map_err(unusable)? {
                Some(socket) => Listener::Unix(socket),
                None => continue,
            },
        };
        let reference = SockRef::from(&socket);
        if !reference.is_listener().map_err(unusable)? {
            let text = "a socket that does not listen (`Accept=yes` in the unit?)";
            return Err(unusable(io::Error::other(text)));
        }
        reference.set_nonblocking(true).map_err(unusable)?;
        sockets.push(OpenedSocket {
            name,
            lent: true,
            socket,
        });
    }
    Ok(Inherited {
        sockets,
        predecessor: None,
    })
}
