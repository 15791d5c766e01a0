//! `tidegate-planner-bindgen FILE.wasm FOLDER`: writes the JavaScript module
//! `planner.js` and the `planner_bg.wasm` that it loads.

use std::path::PathBuf;
use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let given: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [input, output] = given.as_slice() else {
        eprintln!("usage: tidegate-planner-bindgen FILE.wasm FOLDER");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    bindgen.input_path(input).out_name("planner").typescript(false);
    // Names of functions, for a debugger: a tenth of the file.
    bindgen.remove_name_section(true).remove_producers_section(true);
    let made = bindgen.web(true).and_then(|bindgen| bindgen.generate(output));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-planner-bindgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}
