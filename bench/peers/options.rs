//! What the command may be told.

use std::path::PathBuf;
use std::time::Duration;

use super::peer::{ALL as PEERS, Peer};
use super::scenario::{ALL as SCENARIOS, Scenario};
use crate::{process, stage};

pub const USAGE: &str = "\
usage: bench peers [OPTIONS]

  --rounds N         how often all is measured, in turn (3)
  --seconds N        how long each measurement takes (3)
  --minutes N        when it ends at last, whatever is left to do (20)
  --only A,B         some scenarios: c64 c8 64k post http2 rejected varied
                     rejected-varied steady memory
  --peers A,B        some rows, by the beginnings of their names: nginx, tidegate, haproxy
  --cores A,B        the proxy's core, and that of all else (the first two)
  --into FOLDER      where all figures and the picture go (bench in the target folder)
  --write            into docs/performance.md, its figures and picture as well, if all was measured
";

/// What it was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub rounds: usize,
    pub seconds: u64,
    pub at_most: Duration,
    pub scenarios: Vec<Scenario>,
    pub peers: Vec<Peer>,
    pub cores: (usize, usize),
    pub into: PathBuf,
    pub write: bool,
}

impl Options {
    pub fn read(words: &[String]) -> Result<Options, String> {
        let cores = process::cores();
        let first = *cores.first().ok_or("no core may be used")?;
        let mut options = Options {
            rounds: 3,
            seconds: 3,
            at_most: Duration::from_secs(20 * 60),
            scenarios: SCENARIOS.to_vec(),
            peers: PEERS.to_vec(),
            cores: (first, cores.get(1).copied().unwrap_or(first)),
            into: stage::target().join("bench"),
            write: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--write" {
                options.write = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} what?"))?;
            options.take(word, value)?;
        }
        Ok(options)
    }

    fn take(&mut self, word: &str, value: &str) -> Result<(), String> {
        let number = || match value.parse::<u64>() {
            Ok(number @ 1..=1000) => Ok(number),
            _ => Err(format!("{word} is a number from 1 to 1000, not {value}")),
        };
        match word {
            "--rounds" => self.rounds = number()? as usize,
            "--seconds" => self.seconds = number()?,
            "--minutes" => self.at_most = Duration::from_secs(60 * number()?),
            "--only" => {
                let known = |id: &str| {
                    let mut all = SCENARIOS.into_iter();
                    let found = all.find(|scenario| scenario.id() == id);
                    found.ok_or_else(|| format!("no scenario is called {id}"))
                };
                self.scenarios = value.split(',').map(known).collect::<Result<_, _>>()?;
            }
            "--peers" => {
                let wanted: Vec<String> = value.split(',').map(str::to_lowercase).collect();
                let named = |peer: &Peer| {
                    let name = peer.name().to_lowercase();
                    wanted
                        .iter()
                        .any(|wanted| name.starts_with(wanted.as_str()))
                };
                self.peers = PEERS.into_iter().filter(named).collect();
                if self.peers.is_empty() {
                    return Err(format!("no row is called {value}"));
                }
            }
            "--cores" => {
                let cores = value
                    .split_once(',')
                    .and_then(|(proxy, other)| Some((proxy.parse().ok()?, other.parse().ok()?)));
                let usable = process::cores();
                self.cores = cores
                    .filter(|(proxy, other)| usable.contains(proxy) && usable.contains(other))
                    .ok_or_else(|| format!("--cores is two of {usable:?}, not {value}"))?;
            }
            "--into" => self.into = PathBuf::from(value),
            _ => return Err(format!("{word} means nothing here")),
        }
        Ok(())
    }

    /// Whether what it finds can stand in the documentation.
    pub fn is_whole(&self) -> bool {
        let all = self.scenarios.len() == SCENARIOS.len() && self.peers.len() == PEERS.len();
        all && self.rounds >= 3 && self.seconds >= 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Options, String> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Options::read(&words)
    }

    #[test]
    fn words_are_understood_or_refused() {
        let all = read("").unwrap();
        assert!(all.is_whole());
        assert_eq!((all.rounds, all.seconds), (3, 3));
        let some = read("--rounds 1 --only c64,memory --peers nginx --write").unwrap();
        assert_eq!(some.scenarios, [Scenario::Many, Scenario::Memory]);
        assert_eq!(some.peers, [Peer::Nginx, Peer::NginxLimit, Peer::NginxLua]);
        assert!(some.write && !some.is_whole());
        for wrong in [
            "--rounds",
            "--rounds 0",
            "--only c9",
            "--peers x",
            "--cores 1",
            "--x 1",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
