//! The door: hands over to the library's command line.

fn main() -> std::process::ExitCode {
    tidegate::cli::main()
}
