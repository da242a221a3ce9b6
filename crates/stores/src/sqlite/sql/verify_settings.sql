SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous;
