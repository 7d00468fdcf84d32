"""Expert parallelism: tokens travel to the experts, where FSDP would gather the experts."""
