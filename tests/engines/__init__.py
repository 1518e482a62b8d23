"""The sandbox on other engines and runtimes: Podman, gVisor."""
