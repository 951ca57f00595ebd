package faults

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Owner returns which of the processes holds the socket whose own address is
// peer and that is connected to local, or false: a socket that is closed by now
// has none. On one machine that is the only way to tell who dials.
func Owner(peer *net.TCPAddr, local string, pids []int) (pid int, ok bool) {
	inode := inodeOf(peer, local)
	if inode == "" {
		return 0, false
	}
	link := "socket:[" + inode + "]"
	for _, pid := range pids {
		fds, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == link {
				return pid, true
			}
		}
	}
	return 0, false
}

// inodeOf looks a socket up in the system's table of them.
func inodeOf(peer *net.TCPAddr, local string) string {
	addr, err := net.ResolveTCPAddr("tcp4", local)
	if err != nil {
		return ""
	}
	table, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer func() { _ = table.Close() }()
	from, to := inTable(peer), inTable(addr)
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && fields[1] == from && fields[2] == to {
			return fields[9]
		}
	}
	return ""
}

// inTable writes an address as the table does: the IP in the machine's own
// order of bytes.
func inTable(addr *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(addr.IP.To4()), addr.Port)
}
