//! How two processes of ours talk while one takes the other's place: messages of words, with
//! descriptors attached, over a pair of sockets whose one end is the new process's standard input.
//!
//! | from | says | |
//! |---|---|---|
//! | old | `process PID` | |
//! | old | `sockets own ADDRESS` | with up to [`AT_ONCE`] sockets |
//! | old | `sockets lent ADDRESS` | the same, where a service manager has them too |
//! | old | `end` | |
//! | new | `ready` | once every worker accepts |
//! | old | `go` | |
//! | new | (closes its end) | once the pid file names it; the old one accepts no more |
//!
//! Whoever closes its end before has failed or changed its mind. The words are the contract
//! between versions: [`VERSION`] grows when they change.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair, sockopt,
};

/// The environment variable that tells a process to look at its standard input.
pub(crate) const VARIABLE: &str = "TIDEGATE_HANDOVER";
/// Its value.
pub(crate) const VERSION: &str = "1";
/// Descriptors in one message, at most.
pub(crate) const AT_ONCE: usize = 64;
/// Bytes in one message, at most: an address and a word.
const MESSAGE_BYTES: usize = 1024;

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// What came.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) words: String,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Both ends: ours, and the new process's standard input.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Channel(ours), theirs))
    }

    /// The end that this process was started with. Standard input is empty from then on.
    pub(crate) fn from_stdin() -> io::Result<Channel> {
        let channel = Channel(io::stdin().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        Ok(channel)
    }

    /// How long [`Channel::receive`] waits.
    pub(crate) fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(
            &self.0,
            sockopt::Timeout::Recv,
            Some(time),
        )?)
    }

    pub(crate) fn send(&self, words: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits =
            descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
        if !fits || words.len() > MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(
            &self.0,
            &[IoSlice::new(words.as_bytes())],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// The next message; none once the other side has closed.
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
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(io::Error::other("a message that is too long"));
        }
        let words = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
        Ok(Some(Message { words, descriptors }))
    }
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
        theirs.wait_at_most(Duration::from_millis(10)).unwrap();
        assert_eq!(
            theirs.receive().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(ours);
        assert!(theirs.receive().unwrap().is_none());
    }
}
