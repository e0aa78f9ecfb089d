//! Verbs that have verbs of their own.

/// Declares `What` is asked for, a variant for each module with an `Args`, and how it is done.
macro_rules! verbs {
    ($($variant:ident($module:ident)),+ $(,)?) => {
        /// What is asked for.
        #[derive(Debug, clap::Subcommand)]
        enum What {
            $($variant($module::Args),)+
        }

        impl What {
            fn execute(
                self,
                json: bool,
            ) -> Result<std::process::ExitCode, $crate::failure::Failure> {
                match self {
                    $(Self::$variant(args) => args.execute(json),)+
                }
            }
        }
    };
}

pub(crate) use verbs;
