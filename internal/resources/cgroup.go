package resources

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// unlimited is where limits end to be limits: version 1 writes the largest
// number that its page counters can hold, which depends on the page size.
const unlimited = 1 << 60

// version is one of the two kernel interfaces of the memory controller. A
// hybrid machine has both mounted and the controller in one of them; the other
// one's groups have no such files, and so no limits.
type version struct {
	usual    string   // mount point, where the mounts can't be read
	limits   []string // files, of which the lowest counts
	usage    string   // file
	inactive string   // key of the inactive page cache in memory.stat
	nesting  string   // file that says whether groups count their children
}

var (
	version1 = version{
		usual:  "/sys/fs/cgroup/memory",
		limits: []string{"memory.limit_in_bytes"}, usage: "memory.usage_in_bytes",
		inactive: "total_inactive_file", nesting: "memory.use_hierarchy",
	}
	version2 = version{
		usual:  "/sys/fs/cgroup",
		limits: []string{"memory.max", "memory.high"}, usage: "memory.current",
		inactive: "inactive_file", // groups always count their children
	}
)

// mount is where a part of a hierarchy can be seen.
type mount struct {
	root  string // the group that is mounted, named like place.group
	point string
}

// place is this process's place in one hierarchy.
type place struct {
	version
	group  string // as /proc/self/cgroup has it: relative to the namespace's root
	mounts []mount
}

// groupsAvailable returns the least of what is left in the groups around this
// process, in bytes.
func groupsAvailable(root string) (least uint64, known bool) {
	least = math.MaxUint64
	for _, p := range places(root) {
		for _, chain := range p.chains() {
			for i, group := range chain {
				dir := filepath.Join(root, group)
				if i > 0 && p.nesting != "" && text(dir, p.nesting) == "0" {
					break // it counts itself alone, and so does all above it
				}
				if left, ok := p.left(dir); ok {
					least, known = min(least, left), true
				}
			}
		}
	}
	return least, known
}

// chains returns the paths of the groups around the process, for each mount
// that shows them from the inside out, up to the mount's root.
//
// If none does, the first mount's root stands for them. That is how it looks in
// a container that names its groups differently than it mounts them (entered
// from outside, moved, or with mounts older than its namespace): the root of
// what it can see is most likely its own group, and workers in Python read
// nothing else.
func (p place) chains() (chains [][]string) {
	for _, m := range p.mounts {
		below, ok := relative(m.root, p.group)
		if !ok {
			continue
		}
		var chain []string
		for ; below != "/"; below = path.Dir(below) {
			chain = append(chain, path.Join(m.point, below))
		}
		chains = append(chains, append(chain, m.point))
	}
	if chains == nil && p.mounts != nil {
		chains = [][]string{{p.mounts[0].point}}
	}
	return chains
}

// relative returns where group is below the group that is mounted. Both may
// begin with "/..", outside of the namespace, where names are hidden.
func relative(mounted, group string) (below string, ok bool) {
	rest, ok := strings.CutPrefix(group, strings.TrimSuffix(mounted, "/"))
	if !ok || rest != "" && rest[0] != '/' || slices.Contains(strings.Split(rest, "/"), "..") {
		return "", false
	}
	return path.Clean("/" + rest), true
}

// left returns what is left of a group's limit, in bytes, and false if it has
// no limit or does not tell.
func (v version) left(dir string) (bytes uint64, ok bool) {
	limit := uint64(unlimited)
	for _, name := range v.limits {
		if n, err := strconv.ParseUint(text(dir, name), 10, 64); err == nil { // not "max"
			limit = min(limit, n)
		}
	}
	usage, err := strconv.ParseUint(text(dir, v.usage), 10, 64)
	if err != nil || limit == unlimited {
		return 0, false
	}
	usage -= min(usage, v.inactiveCache(dir))
	return limit - min(limit, usage), true
}

// inactiveCache returns the page cache that is taken back first, in bytes.
func (v version) inactiveCache(dir string) uint64 {
	stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(stat)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), v.inactive+" "); ok {
			n, _ := strconv.ParseUint(value, 10, 64)
			return n
		}
	}
	return 0
}

// text returns the content of a small file, "" if it can't be read.
func text(dir, name string) string {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// places returns where this process is. What the kernel does not tell is taken
// to be as usual.
func places(root string) []place {
	unified, memory := place{version: version2, group: "/"}, place{version: version1, group: "/"}
	proc, err := procfs.NewFS(filepath.Join(root, "proc"))
	if err == nil {
		unified.group, memory.group = ownGroups(proc)
		var mounts []*procfs.MountInfo
		if mounts, err = proc.GetMounts(); err == nil {
			unified.mounts, memory.mounts = cgroupMounts(mounts)
		}
	}
	if err != nil {
		unified.mounts = []mount{{root: "/", point: unified.usual}}
		memory.mounts = []mount{{root: "/", point: memory.usual}}
	}
	return []place{unified, memory}
}

// ownGroups returns what /proc/self/cgroup says, the root where it does not.
func ownGroups(proc procfs.FS) (unified, memory string) {
	unified, memory = "/", "/"
	self, err := proc.Self()
	if err != nil {
		return unified, memory
	}
	list, err := self.Cgroups()
	if err != nil {
		return unified, memory
	}
	for _, g := range list {
		switch {
		case g.HierarchyID == 0:
			unified = g.Path
		case slices.Contains(g.Controllers, "memory"):
			memory = g.Path
		}
	}
	return unified, memory
}

// cgroupMounts returns the mounts of version 2, and those of the memory
// controller of version 1, but for the ones that a later mount hides.
func cgroupMounts(all []*procfs.MountInfo) (unified, memory []mount) {
	visible := map[string]*procfs.MountInfo{}
	for _, m := range all {
		visible[m.MountPoint] = m
	}
	for _, m := range all {
		if visible[m.MountPoint] != m {
			continue
		}
		found := mount{root: unescape.Replace(m.Root), point: unescape.Replace(m.MountPoint)}
		switch m.FSType {
		case "cgroup2":
			unified = append(unified, found)
		case "cgroup":
			if _, ok := m.SuperOptions["memory"]; ok {
				memory = append(memory, found)
			}
		}
	}
	return unified, memory
}

// unescape undoes what the mount table does to paths, unlike the parser.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
