"""How a prepared loader deals its samples out to ranks."""

from labkit.accelerate.engines import accelerator


def deal(num_samples: int, batch_size: int, split_batches: bool = False) -> list[list[int]]:
    """One rank: the samples that it draws, batch by batch, from an unshuffled loader of so many,
    prepared by Accelerate. With ``split_batches`` the batch size is that of all ranks together."""
    from accelerate import DataLoaderConfiguration
    from torch.utils.data import DataLoader

    config = DataLoaderConfiguration(split_batches=split_batches)
    loader = accelerator(dataloader_config=config).prepare(
        DataLoader(range(num_samples), batch_size)
    )
    return [batch.tolist() for batch in loader]
