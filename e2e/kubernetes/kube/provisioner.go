package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// directories makes volumes that are directories of this machine. It runs beside the kubelet, not in a pod, so it needs
// no pods of its own to make and remove them.
type directories struct{ root string }

// The claim's name is in the directory's, for people who look for data.
func (d directories) path(options controller.ProvisionOptions) string {
	claim := options.PVC
	return filepath.Join(d.root, fmt.Sprintf("%s_%s_%s", options.PVName, claim.Namespace, claim.Name))
}

func (d directories) Provision(
	_ context.Context, options controller.ProvisionOptions,
) (*core.PersistentVolume, controller.ProvisioningState, error) {
	if options.SelectedNodeName == "" {
		return nil, controller.ProvisioningFinished, errors.New("no node is chosen: the class must wait for the first consumer")
	}
	path := d.path(options)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return nil, controller.ProvisioningNoChange, err
	}
	// Kubernetes does not change owners of such volumes (fsGroup), so everybody may write; the umask does not count.
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, controller.ProvisioningNoChange, err
	}
	return d.volume(options, path), controller.ProvisioningFinished, nil
}

func (d directories) volume(options controller.ProvisionOptions, path string) *core.PersistentVolume {
	mode, kind := core.PersistentVolumeFilesystem, core.HostPathDirectoryOrCreate
	onThisNode := core.NodeSelectorRequirement{
		Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: []string{options.SelectedNodeName},
	}
	term := core.NodeSelectorTerm{MatchExpressions: []core.NodeSelectorRequirement{onThisNode}}
	return &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: options.PVName},
		Spec: core.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			VolumeMode:                    &mode,
			// Nobody measures it: a directory is as large as the disk is.
			Capacity: core.ResourceList{
				core.ResourceStorage: options.PVC.Spec.Resources.Requests[core.ResourceStorage],
			},
			PersistentVolumeSource: core.PersistentVolumeSource{
				HostPath: &core.HostPathVolumeSource{Path: path, Type: &kind},
			},
			NodeAffinity: &core.VolumeNodeAffinity{
				Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{term}},
			},
		},
	}
}

// Delete removes a volume's directory, and nothing that is not one of ours.
func (d directories) Delete(_ context.Context, volume *core.PersistentVolume) error {
	source := volume.Spec.HostPath
	if source == nil || filepath.Dir(filepath.Clean(source.Path)) != d.root {
		return fmt.Errorf("the volume %s is not a directory in %s", volume.Name, d.root)
	}
	return os.RemoveAll(source.Path)
}

func runProvisioner(arguments []string) int {
	flags := flag.NewFlagSet("provisioner", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	name := flags.String("name", "host-dir", "what storage classes call it")
	root := flags.String("root", "", "where the directories are made")
	_ = flags.Parse(arguments)
	configuration, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	client, err := kubernetes.NewForConfig(configuration)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	volumes := directories{root: filepath.Clean(*root)}
	go growVolumes(ctx, client, *name)
	alone := controller.LeaderElection(false)
	controller.NewProvisionController(ctx, client, *name, volumes, alone, controller.Threadiness(2)).Run(ctx)
	return 0
}
