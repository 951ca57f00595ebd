package resources_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree is what lies below a root: contents by path.
type tree map[string]string

// write lays the trees over each other, below a root of their own.
func write(t *testing.T, trees ...tree) (root string) {
	t.Helper()
	root = t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc", "42"), 0o755))
	require.NoError(t, os.Symlink("42", filepath.Join(root, "proc", "self")))
	all := tree{}
	for _, one := range trees {
		maps.Copy(all, one)
	}
	for name, content := range all {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	return root
}

// free is a machine with some MB available.
func free(n int) tree {
	return tree{"proc/meminfo": fmt.Sprintf("MemTotal:       64000000 kB\nMemFree:              12 kB\nMemAvailable:   %d kB\nHugePages_Total:       0\n", n<<10)}
}

// in is a process with these control groups and mounts.
func in(groups string, mounts ...string) tree {
	mounts = append([]string{"22 1 0:21 / /proc rw,relatime - proc proc rw"}, mounts...)
	return tree{"proc/42/cgroup": groups + "\n", "proc/42/mountinfo": strings.Join(mounts, "\n") + "\n"}
}

// mounted2 and mounted1 are lines of the mount table: of version 2, and of
// controllers of version 1.
func mounted2(group, point string) string {
	return "31 23 0:28 " + group + " " + point + " rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
}

func mounted1(controllers, group, point string) string {
	return "35 31 0:32 " + group + " " + point + " ro,nosuid master:11 - cgroup cgroup rw," + controllers
}

// group2 and group1 are groups with a limit and a usage in MB. A negative limit
// is none.
func group2(dir string, limit, usage int) tree {
	maximum := "max"
	if limit >= 0 {
		maximum = mb(limit)
	}
	return tree{
		dir + "/memory.max": maximum + "\n", dir + "/memory.high": "max\n", dir + "/memory.current": mb(usage) + "\n",
		dir + "/memory.stat": "anon 1\nfile 2\ninactive_anon 3\nactive_anon 4\ninactive_file 0\nactive_file 99000000\n",
	}
}

func group1(dir string, limit, usage int) tree {
	maximum := "9223372036854771712"
	if limit >= 0 {
		maximum = mb(limit)
	}
	return tree{
		dir + "/memory.limit_in_bytes": maximum + "\n", dir + "/memory.usage_in_bytes": mb(usage) + "\n",
		dir + "/memory.use_hierarchy": "1\n",
		dir + "/memory.stat":          "cache 2\ninactive_file 99000000\ntotal_cache 2\ntotal_inactive_file 0\ntotal_active_file 99000000\n",
	}
}

func mb(n int) string { return fmt.Sprint(n << 20) }
