// Command kube is a whole Kubernetes node in one program: `kube COMPONENT [flags]`, or called by a component's name.
//
// Kubernetes publishes no programs by the Go module proxy, but its sources are there, and each component is a function
// that returns its command. Linked together they are built once and share their code.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// A component runs with the arguments behind its name and returns an exit code.
type component func(arguments []string) int

var components = map[string]component{
	"apiserver":          ofCommand(apiserver.NewAPIServerCommand),
	"controller-manager": ofCommand(controllers.NewControllerManagerCommand),
	"scheduler":          ofCommand(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"proxy":              ofCommand(proxy.NewProxyCommand),
	"kubelet":            ofCommand(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":            runKubectl,
	"etcd":               runEtcd,
	"coredns":            runCoreDNS,
	"provisioner":        runProvisioner,
	"criclean":           removePods,
}

func ofCommand(make func() *cobra.Command) component {
	return func(arguments []string) int {
		command := make()
		command.SetArgs(arguments)
		return cli.Run(command)
	}
}

func runKubectl([]string) int {
	logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	return 0
}

func runEtcd([]string) int {
	etcdmain.Main(os.Args)
	return 0
}

// Some components read os.Args by themselves and must find themselves in it, not us.
func asIfAlone(name string, arguments []string) {
	os.Args = append([]string{name}, arguments...)
}

func main() {
	name, arguments := filepath.Base(os.Args[0]), os.Args[1:]
	if _, known := components[name]; !known && len(arguments) > 0 {
		name, arguments = arguments[0], arguments[1:]
	}
	run, known := components[name]
	if !known {
		names := slices.Sorted(maps.Keys(components))
		fmt.Fprintf(os.Stderr, "usage: kube %s [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	asIfAlone(name, arguments)
	os.Exit(run(arguments))
}
