package resources

import (
	"path/filepath"

	"github.com/prometheus/procfs"
)

// UnknownMB stands in for the available memory where nothing tells it. Workers
// in Python report the same then.
const UnknownMB = 1024

const bytesPerMB = 1 << 20

// AvailableMB returns how much memory this process may still take before it or
// its machine runs out, in whole MB of 2^20 bytes, rounded down: the least of
// what is left in each control group around it, and of what the machine has
// available without swapping. It is never negative, and UnknownMB if neither is
// known. A file that is missing or malformed counts as no limit; it never fails.
//
// What is left in a group is its limit less its usage, where
//
//   - the limit is the lower one of memory.max and memory.high. Above the
//     latter the kernel does not kill, but slows the processes down to make them
//     give memory back, so there is no room for instances there either.
//   - the usage is less the inactive page cache, as in the kubelet's working
//     set. The kernel takes that back before it refuses anything, and a process
//     that writes files fills any limit with it sooner or later: with it, a
//     worker would seem full that is not. The machine's own figure leaves it out
//     as well. The active page cache counts as used, to be careful.
//
// A worker in Python counts all page cache as used where a limit is on it, and
// neither memory.high nor the groups outside of its own. With the same limit and
// a full cache it therefore seems to have less room than one in Go, which gets
// more of the new ids until its own memory is really used. That is for
// fleets to level with a headroom of their own; to count the cache here would
// make the figure wrong in every fleet.
func AvailableMB(root string) int64 {
	least, known := groupsAvailable(root)
	if host, ok := hostAvailable(root); ok {
		least, known = min(least, host), true
	}
	if !known {
		return UnknownMB
	}
	return int64(least / bytesPerMB) // far below 2^63: see unlimited
}

// hostAvailable returns the kernel's own estimate, in bytes.
func hostAvailable(root string) (available uint64, known bool) {
	proc, err := procfs.NewFS(filepath.Join(root, "proc"))
	if err != nil {
		return 0, false
	}
	info, err := proc.Meminfo()
	if err != nil || info.MemAvailableBytes == nil {
		return 0, false
	}
	return *info.MemAvailableBytes, true
}
