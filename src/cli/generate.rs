//! Commands that generate text: `init`, `import`, `schema`, `completions` and `man`.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::output::{CommandError, print, print_error};
use super::{BAD_CONFIGURATION, Cli, DID_NOT_WORK, WRONG_USE};
use crate::config::schema;
use crate::import::{self, Grade, ImportError, Imported};

const MINIMAL: &str = "listen   = \":8080\"\nupstream = \"http://127.0.0.1:3000\"\n\n\
    [limit.default]\nrate = \"100/min\"\nkey  = \"ip\"\n";
const USUAL: &str = include_str!("../../proxy.toml");
const FULL: &str = include_str!("../../proxy.reference.toml");
/// The schema's file name, in the folder of the configuration.
const SCHEMA: &str = "proxy.schema.json";

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// The file to write.
    #[arg(value_name = "FILE", default_value = "proxy.toml")]
    file: PathBuf,
    /// The smallest file that limits something.
    #[arg(long, conflicts_with = "full")]
    minimal: bool,
    /// Every setting with its default.
    #[arg(long)]
    full: bool,
    /// Also write the schema, for completion and checks in editors.
    #[arg(long)]
    schema: bool,
    /// Overwrite the file if it exists.
    #[arg(long)]
    force: bool,
}

/// `tidegate init`: writes a commented `proxy.toml`.
pub(super) fn init(args: &InitArgs) -> Result<u8, CommandError> {
    let text = match (args.minimal, args.full) {
        (true, _) => MINIMAL,
        (_, true) => FULL,
        _ => USUAL,
    };
    let schema_file = args.file.with_file_name(SCHEMA);
    let line = match args.schema || schema_file.is_file() {
        true => format!("#:schema ./{SCHEMA}\n"),
        false => String::new(),
    };
    let name = args.file.display();
    let written = write_new(&args.file, &format!("{line}{text}"), args.force);
    // An old schema is replaced: only the one of this version fits.
    let written = match args.schema {
        true => written.and_then(|()| write_new(&schema_file, &schema_text(text), true)),
        false => written,
    };
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => already_there(&args.file),
        _ => CommandError::signed(format!("cannot write {name}: {error}")),
    })?;
    print_error(&format!(
        "wrote {name}; find mistakes with `tidegate check -c {name}`, serve with \
         `tidegate run -c {name}`"
    ));
    Ok(0)
}

/// Writes a file. Without `force`, the file must be new.
fn write_new(path: &Path, text: &str, force: bool) -> std::io::Result<()> {
    let mut file = match force {
        true => File::create(path)?,
        false => File::create_new(path)?,
    };
    file.write_all(text.as_bytes())
}

fn already_there(path: &Path) -> CommandError {
    let name = path.display();
    CommandError::signed(format!(
        "there is a {name} already; `--force` overwrites it"
    ))
    .with_code(WRONG_USE)
}

#[derive(Debug, Args)]
pub(super) struct SchemaArgs {
    /// A configuration: editors then complete the names of its limits, upstreams and tiers.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) fn print_schema(args: &SchemaArgs) -> Result<u8, CommandError> {
    let text = match &args.file {
        Some(path) => std::fs::read_to_string(path).map_err(|error| {
            CommandError::signed(format!("cannot read {}: {error}", path.display()))
        })?,
        None => String::new(),
    };
    print(schema_text(&text))?;
    Ok(0)
}

fn schema_text(configuration: &str) -> String {
    format!("{:#}\n", schema::schema_with_names(configuration))
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// The program of the configuration.
    #[arg(value_enum)]
    from: ImportFormat,
    /// The file, with all that it includes; `-` is standard input. `envoy-ratelimit` takes several
    /// files or folders, `tyk` several files.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The proxy.toml to write; the default is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the output if it exists.
    #[arg(long, requires = "output")]
    force: bool,
    /// Exit with 1 if a part could not be kept.
    #[arg(long)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ImportFormat {
    /// nginx.conf, or a file that it includes.
    Nginx,
    /// Traefik's dynamic or static configuration, YAML or TOML.
    Traefik,
    /// YAML of envoyproxy/ratelimit, one file for each domain.
    EnvoyRatelimit,
    /// Kong's declarative configuration, with its budgets of tokens.
    Kong,
    /// APISIX routes, with their budgets of tokens: apisix.yaml, ADC, or JSON of the Admin API.
    Apisix,
    /// Resources of Envoy AI gateway, with their budgets of tokens.
    EnvoyAi,
    /// API definitions and policies of Tyk, with their rates and quotas.
    Tyk,
}

/// `tidegate import`: writes another program's configuration as a `proxy.toml`, and lists what is
/// lost.
pub(super) fn import(args: &ImportArgs) -> Result<u8, CommandError> {
    let from = match args.from {
        ImportFormat::Nginx => import::SourceProgram::Nginx,
        ImportFormat::Traefik => import::SourceProgram::Traefik,
        ImportFormat::EnvoyRatelimit => import::SourceProgram::EnvoyRatelimit,
        ImportFormat::Kong => import::SourceProgram::Kong,
        ImportFormat::Apisix => import::SourceProgram::Apisix,
        ImportFormat::EnvoyAi => import::SourceProgram::EnvoyAi,
        ImportFormat::Tyk => import::SourceProgram::Tyk,
    };
    let takes_several = [ImportFormat::EnvoyRatelimit, ImportFormat::Tyk];
    if args.files.len() > 1 && !takes_several.contains(&args.from) {
        let message = "only `envoy-ratelimit` and `tyk` take several files";
        return Err(CommandError::wrong_use(message));
    }
    let imported = import::import(from, &args.files).map_err(|error| {
        let code = match error {
            ImportError::Syntax(_) => BAD_CONFIGURATION,
            ImportError::Unreadable(_) | ImportError::Refused(_) => DID_NOT_WORK,
        };
        CommandError::signed(error).with_code(code)
    })?;
    match &args.output {
        None => print(&imported.text)?,
        Some(path) => {
            let written = write_new(path, &imported.text, args.force);
            written.map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => already_there(path),
                _ => CommandError::signed(format!("cannot write: {error}")),
            })?;
        }
    }
    let lost = report_losses(&imported);
    Ok(u8::from(args.strict && lost > 0) * DID_NOT_WORK)
}

/// Lists what differs from the original. Returns the number of losses.
fn report_losses(imported: &Imported) -> usize {
    for note in &imported.notes {
        match note.grade {
            Grade::Lost => print_error(&format!("not kept: {note}")),
            Grade::Differs => print_error(&format!("differs:  {note}")),
            Grade::Needless => {}
        }
    }
    let count = |grade| {
        let notes = imported.notes.iter();
        notes.filter(|note| note.grade == grade).count()
    };
    let lost = count(Grade::Lost);
    print_error(&format!(
        "{lost} not kept, {} a little different, {} not needed; the whole list is at the head of \
         the file",
        count(Grade::Differs),
        count(Grade::Needless)
    ));
    lost
}

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) fn print_completions(args: &CompletionsArgs) -> Result<u8, CommandError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut text);
    print(text)?;
    Ok(0)
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// A folder for one page of each command; without it, print the first page.
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(super) fn write_man_pages(args: &ManArgs) -> Result<u8, CommandError> {
    let command = Cli::command();
    match &args.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(command, folder))
                .map_err(CommandError::signed)?;
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut text)
                .map_err(CommandError::signed)?;
            print(text)?;
        }
    }
    Ok(0)
}
