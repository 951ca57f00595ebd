// Package resources tells what a worker may still use of its machine, and what
// its process uses.
//
// Both are read from files below a root, "/" but in tests, and cheaply enough
// for every heartbeat: some ten small files, and the mount table. Nothing is
// kept between two readings, since a process may be moved and a limit changed.
//
// github.com/prometheus/procfs parses what lies in /proc; it comes with the
// metrics client anyway. What the memory controller's files mean is written
// here, because no library answers the question: containerd/cgroups manages
// groups, and reads the one that it is given; KimMachineGun/automemlimit looks
// for the limit alone, not for what is left of it; shirou/gopsutil reads the
// machine and does not know limits, at the price of what it needs for Windows.
// Where there is no /proc, memory is therefore unknown: outside of Linux.
package resources
