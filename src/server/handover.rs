//! The messages by which one process of ours replaces another, and the sockets that a process
//! inherits. Messages are texts with descriptors, over a pair of sockets. One end of the pair is
//! the standard input of the new process.
//!
//! | from | text | |
//! |---|---|---|
//! | old | `process PID` | |
//! | old | `sockets own ADDRESS` | with up to [`AT_ONCE`] sockets |
//! | old | `sockets lent ADDRESS` | the same, if a service manager has them too |
//! | old | `end` | |
//! | new | `ready` | when every worker accepts |
//! | old | `go` | |
//! | new | (closes its end) | when the pid file names it; the old process accepts no more |
//!
//! A process that closes its end earlier has failed or gives up. The texts are a contract between
//! versions: a change of them increases [`VERSION`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use socket2::SockRef;

use super::listener::{OpenedSocket, check_inherited};
use super::systemd;
use crate::config;

/// The environment variable that makes a process read from its standard input.
pub(crate) const VARIABLE: &str = "TIDEGATE_HANDOVER";
pub(crate) const VERSION: &str = "1";
/// Descriptors in one message, at most.
pub(crate) const AT_ONCE: usize = 64;
/// Bytes in one message, at most.
const MESSAGE_BYTES: usize = 1024;
/// How long the new process waits for a message of the old one.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) words: String,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Creates both ends: ours, and the standard input of the new process.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Channel(ours), theirs))
    }

    /// Takes the end that this process was started with. Standard input is empty after that.
    fn from_stdin() -> io::Result<Channel> {
        let channel = Channel(io::stdin().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        Ok(channel)
    }

    /// Sets how long [`Channel::receive`] waits.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        SockRef::from(&self.0).set_read_timeout(Some(timeout))
    }

    pub(crate) fn send(&self, words: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits =
            descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
        if !fits || words.len() > MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let words = [IoSlice::new(words.as_bytes())];
        sendmsg(&self.0, &words, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Returns the next message; `None` after the other side has closed.
    pub(crate) fn receive(&self) -> io::Result<Option<Message>> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let truncated = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if received.flags.intersects(truncated) {
            return Err(io::Error::other("a message that is too long"));
        }
        let words = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
        Ok(Some(Message { words, descriptors }))
    }
}

/// The sockets that this process was started with.
#[derive(Debug, Default)]
pub struct Inherited {
    pub sockets: Vec<OpenedSocket>,
    pub predecessor: Option<Predecessor>,
}

/// The process that this one replaces. It serves until [`Predecessor::take_over`].
#[derive(Debug)]
pub struct Predecessor {
    channel: Channel,
    pub pid: u32,
}

impl Inherited {
    /// Takes the sockets of the old process or of the service manager. Must be called once, before
    /// other threads are started.
    ///
    /// # Errors
    /// The sockets or the messages cannot be used.
    pub fn take() -> io::Result<Inherited> {
        match config::environment(VARIABLE) {
            Some(version) if version == VERSION => from_predecessor(Channel::from_stdin()?),
            Some(version) => Err(io::Error::other(format!(
                "{VARIABLE} is {version}, and this version understands {VERSION} only"
            ))),
            None => Ok(Inherited {
                sockets: systemd::take_sockets()?,
                predecessor: None,
            }),
        }
    }
}

impl Predecessor {
    /// Reports that this process serves. Returns when the old process has agreed or is gone; it
    /// stops accepting when this value is dropped.
    ///
    /// # Errors
    /// The old process goes on, so this one must end.
    pub fn take_over(&self) -> io::Result<()> {
        self.channel.set_timeout(PATIENCE)?;
        // A process that has died since needs no message.
        let sent = self.channel.send("ready", &[]);
        let answer = sent.and_then(|()| self.channel.receive());
        match answer {
            Ok(Some(message)) if message.words == "go" => Ok(()),
            Ok(Some(message)) => Err(unexpected(self.pid, &message)),
            Ok(None) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn unexpected(pid: u32, message: &Message) -> io::Error {
    io::Error::other(format!("process {pid} says `{}`", message.words))
}

fn from_predecessor(channel: Channel) -> io::Result<Inherited> {
    channel.set_timeout(PATIENCE)?;
    let mut sockets = Vec::new();
    let mut pid = 0;
    loop {
        let message = channel.receive()?;
        let message = message.ok_or(io::ErrorKind::UnexpectedEof)?;
        let words: Vec<&str> = message.words.splitn(3, ' ').collect();
        match words[..] {
            ["process", text] => pid = text.parse().unwrap_or_default(),
            ["sockets", owner @ ("own" | "lent"), name] => {
                for descriptor in message.descriptors {
                    sockets.push(OpenedSocket {
                        name: name.to_owned(),
                        lent: owner == "lent",
                        socket: check_inherited(descriptor.into())?,
                    });
                }
            }
            ["end"] => break,
            _ => return Err(unexpected(pid, &message)),
        }
    }
    Ok(Inherited {
        sockets,
        predecessor: Some(Predecessor { channel, pid }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn words_and_descriptors_arrive_together_and_the_end_is_seen() {
        let (ours, theirs) = Channel::pair().unwrap();

        let theirs = Channel(theirs);
        let file = std::fs::File::open("/dev/null").unwrap();
        ours.send("some words", &[file.as_fd(), file.as_fd()])
            .unwrap();
        ours.send("end", &[]).unwrap();
        let first = theirs.receive().unwrap().unwrap();
        assert_eq!((&*first.words, first.descriptors.len()), ("some words", 2));
        assert_eq!(theirs.receive().unwrap().unwrap().words, "end");
        assert!(ours.send(&"x".repeat(MESSAGE_BYTES + 1), &[]).is_err());
        theirs.set_timeout(Duration::from_millis(10)).unwrap();
        assert_eq!(
            theirs.receive().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(ours);
        assert!(theirs.receive().unwrap().is_none());
    }
}
